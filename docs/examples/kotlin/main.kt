/** Prints the classes of a photo: FOLDER PHOTO. */
import android.content.Context
import android.content.res.AssetManager
import android.net.Uri
import java.io.File
import org.example.classifier.Classifier

fun main(arguments: Array<String>) {
    val context = Context(AssetManager(File(arguments[0])))
    Classifier(context).use { classifier ->
        for ((name, share) in classifier.classify(context, Uri(arguments[1]))) {
            println("$name $share")
        }
    }
}
