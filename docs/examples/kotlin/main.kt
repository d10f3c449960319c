/** Prints the classes of a photo: FOLDER PHOTO. */
import android.content.Context
import android.content.res.AssetManager
import android.net.Uri
import java.io.File
import org.example.classifier.Classifier

fun main(arguments: Array<String>) {
    val context = Context(AssetManager(File(arguments[0])))
    Classifier(context).use { classifier ->
        val classes = classifier.classify(context, Uri(arguments[1]))
        for ((name, share) in classes) println("$name $share")
        if (classes.isEmpty()) println("unknown, or without a label")
    }
}
